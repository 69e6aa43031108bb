"""Test files in other words, for a counter-proof: the import system alone knows them, and the disk has them as they were written.

Code under test that reads its tests, to say what they want or to act while they are as they were, finds no difference. They lie in a
folder that is gone before anything of the tree is loaded, and each is handed out once. Runs under Python 3.7 and on.
"""

from __future__ import annotations

import ast
import importlib.machinery
import os
import shutil

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

FOLDER = ".moothall-instead"


def take() -> dict[str, bytes]:
    """Return the files by path, out of the folder at the checkout's top: the working directory, or one above it."""
    top = os.getcwd()
    while not os.path.isdir(os.path.join(top, FOLDER)):
        if top == os.path.dirname(top):
            return {}
        top = os.path.dirname(top)
    folder = os.path.join(top, FOLDER)
    texts = {}
    for inner, _, names in os.walk(folder):
        for name in names:
            path = os.path.join(inner, name)
            with open(path, "rb") as file:
                texts[os.path.realpath(os.path.join(top, os.path.relpath(path, folder)))] = file.read()
    shutil.rmtree(folder)
    return texts


def put(texts: dict[str, bytes]) -> None:
    """Write them to the disk after all, where other processes import them."""
    while texts:
        path, text = texts.popitem()
        with open(path, "wb") as file:
            file.write(text)


def install(texts: dict[str, bytes]) -> None:
    """Let plain imports find them, and pytest's, which rewrites assertions, where it is there."""
    if not texts:
        return
    loader = importlib.machinery.SourceFileLoader
    plain, known = loader.get_data, loader.path_stats

    def get_data(self: Any, path: str) -> bytes:
        text = texts.pop(os.path.realpath(path), None)
        return plain(self, path) if text is None else text

    def path_stats(self: Any, path: str) -> Any:
        if os.path.realpath(path) in texts:
            raise OSError("nothing of it is compiled")
        return known(self, path)

    loader.get_data, loader.path_stats = get_data, path_stats  # type: ignore[method-assign]  # what this is for
    try:
        from _pytest.assertion import rewrite
    except ImportError:
        return
    usual = rewrite.AssertionRewritingHook.exec_module

    def exec_module(self: Any, module: Any) -> None:
        path = module.__spec__.origin or ""
        text = texts.pop(os.path.realpath(path), None)
        if text is None:
            usual(self, module)
            return
        tree = ast.parse(text, filename=path)
        rewrite_asserts: Any = rewrite.rewrite_asserts
        told = (tree, text) if "source" in rewrite_asserts.__code__.co_varnames[:2] else (tree,)
        rewrite_asserts(*told, module_path=path, config=self.config)
        exec(compile(tree, path, "exec", dont_inherit=True), module.__dict__)  # noqa: S102 - as pytest does

    rewrite.AssertionRewritingHook.exec_module = exec_module  # type: ignore[method-assign]  # as above
