"""Escapes by the kernel: system calls, devices, /proc, signals, descriptors."""

from __future__ import annotations

from corpus.attempt import Attempt, python, shell

_CALL = (
    "import ctypes, os\nlibc = ctypes.CDLL(None, use_errno=True)\ndef sys(n, *a):\n    r = "
    "libc.syscall(ctypes.c_long(n), *a)\n    return r, ctypes.get_errno()\n"
)


def _call(name: str, code: str, expected_output: str) -> Attempt:
    return python(name, _CALL + code, expected_output)


_SIGNALS = """import os, signal
said = []
for pid in [2, 3, 4, @PID@, os.getppid(), 1, -1]:
    for number in (signal.SIGSTOP, signal.SIGTERM, signal.SIGKILL, signal.SIGINT, signal.SIGHUP):
        if pid == -1 and number == signal.SIGKILL: continue
        if pid == -1: signal.signal(number, signal.SIG_IGN) if number != signal.SIGSTOP else None
        if (pid, number) == (-1, signal.SIGSTOP): continue
        try:
            os.kill(pid, number)
            said.append((pid, int(number), 'sent'))
        except OSError as e: said.append((pid, int(number), e.strerror))
print('TRIED', said)
"""

ATTEMPTS = (
    # bpf, keyctl, add_key, request_key, io_uring_setup, perf_event_open, userfaultfd, kexec_load,
    # init_module, pidfd_getfd, process_vm_readv, open_by_handle_at, name_to_handle_at, setns,
    # mount_setattr, kcmp, fanotify_init (x86-64 numbers)
    _call(
        "denied-calls",
        "numbers = (321, 250, 248, 249, 425, 298, 323, 246, 175, 438, 310, 304, 303, 308, 442, "
        "312, 300)\n"
        "print('SAID', [sys(n, 0, 0, 0, 0, 0, 0) for n in numbers])",
        r"SAID \[(\(-1, 1\)(, )?){17}\]",
    ),
    # setpriority, ioprio_set; AF_VSOCK
    _call(
        "priorities-and-the-host-of-this-machine",
        "print('SAID', sys(141, 0, 2, 19), sys(141, 2, 0, 19), sys(251, 1, 0, 0), sys(41, 40, 1, "
        "0), sys(41, 40 | 1 << 32, 1, 0))",
        r"SAID (\(-1, 1\) ?){5}",
    ),
    _call(
        "calls-of-32-bits",
        "code = bytes.fromhex('b814000000cd80c3')\n"  # int 0x80: getpid of i386
        "import mmap\nm = mmap.mmap(-1, 4096, prot=7)\nm.write(code)\n"
        "f = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(m)))\n"
        "print('GOT', f())",
        r'"exit_code": -(31|11)',
    ),
    _call("calls-of-x32", "print('GOT', sys(0x40000000 + 39))", r"GOT|-31"),
    _call(
        "unshare",
        "print([libc.unshare(f) for f in (0x10000000, 0x20000, 0x40000000, 0x20000000, "
        "0x2000000)])",
        r"\[-1, -1, -1, -1, -1\]",
    ),
    _call(
        "clone-into-a-namespace",
        "print('SAID', sys(56, 0x10000000 | 17, 0, 0, 0, 0), sys(435, 0, 0))",
        r"SAID \(-1, 1\) \(-1, 38\)",
    ),
    _call(
        "mount",
        "print([libc.mount(b'none', b'/tmp', b'tmpfs', 0, None), libc.mount(b'/', b'/tmp', None, "
        "4096, None), libc.umount2(b'/proc', 2)])",
        r"\[-1, -1, -1\]",
    ),
    _call(
        "chroot-and-pivot",
        "print(libc.chroot(b'/tmp'), libc.pivot_root(b'/tmp', b'/tmp'))",
        "-1 -1",
    ),
    _call(
        "ptrace-the-executor",
        "print([libc.ptrace(16, p, 0, 0) for p in (1, 2)], libc.ptrace(0, 0, 0, 0))",
        r"\[-1, -1\] -1",
    ),
    _call(
        "memory-of-the-executor",
        "said = []\nfor p in (1, 2, os.getppid()):\n    for n in ('mem', 'environ', 'maps', 'fd', "
        "'auxv', 'fdinfo', 'task/2/fd'):\n"
        "        try:\n            os.listdir(f'/proc/{p}/{n}') if 'fd' in n else "
        "open(f'/proc/{p}/{n}', 'rb').read(1)\n            said.append((p, n))\n"
        "        except OSError: pass\nprint('REACHED', [s for s in said if s[0] == 2])",
        r"REACHED \[\]",
    ),
    _call(
        "set-user-id",
        "import shutil\nshutil.copy('/bin/sh', '/tmp/sh')\nos.chmod('/tmp/sh', 0o6755)\n"
        "print(libc.setuid(0), libc.setresgid(0, 0, 0), libc.setgroups(0, None), "
        "os.popen('/tmp/sh -p -c id').read())",
        r"-1 -1 -1 uid=1000",
    ),
    shell(
        "programs-with-set-user-id",
        "for p in $(find /usr/bin /usr/sbin -perm /6000 2>/dev/null); do echo found $p; done; su "
        "-c id root </dev/null 2>&1; sudo -n id 2>&1; cat /etc/shadow 2>&1; echo END",
        "END",
    ),
    _call(
        "capabilities",
        "print([libc.prctl(24, n, 0, 0, 0) for n in (21, 12, 7)], "
        "open('/proc/self/status').read().split('CapEff:')[1][:18], libc.prctl(39, 0, 0, 0, 0))",
        "0000000000000000.{1,4}1",
    ),
    _call(
        "memfd-exec",
        "fd = os.memfd_create('x')\nos.write(fd, open('/bin/cat', 'rb').read())\n"
        "import subprocess\nr = subprocess.run([f'/proc/self/fd/{fd}', '@OUTSIDE@'], "
        "pass_fds=(fd,), capture_output=True, text=True)\nprint(r.returncode, r.stderr)",
        "No such file",
    ),
    _call(
        "devices",
        "said = []\nfor kind in (0o20000, 0o60000):\n    for major, minor in ((1, 1), (8, 0), (5, "
        "1), (10, 200), (253, 0)):\n"
        "        try: os.mknod(f'd{kind}{major}', kind | 0o666, os.makedev(major, minor)); "
        "said.append((major, minor))\n"
        "        except OSError: pass\n"
        "print('MADE', said, sorted(os.listdir('/dev')))",
        r"MADE \[\]",
    ),
    shell(
        "devices-of-the-host",
        "for d in /dev/mem /dev/kmem /dev/sda /dev/vda /dev/kvm /dev/fuse /dev/net/tun "
        "/dev/console /dev/kmsg; do head -c1 $d 2>/dev/null && echo GOT $d; done; echo x > "
        "/dev/console; echo END",
        "END",
    ),
    shell(
        "terminal",
        'python3 -c "import fcntl,termios,os\nfor fd in (0,1,2):\n  try: fcntl.ioctl(fd, '
        "termios.TIOCSTI, b'x'); print('TYPED')\n  except OSError as e: print('HELD')\n\"; (echo "
        "x > /dev/tty) 2>&1",
        "HELD.*HELD.*HELD",
    ),
    _call("signals-to-everybody", _SIGNALS, "TRIED"),
    _call(
        "signals-by-pidfd",
        "import signal\nsaid = []\nfor p in (1, 2):\n    try:\n        "
        "signal.pidfd_send_signal(os.pidfd_open(p), signal.SIGSTOP)\n        said.append(p)\n    "
        "except OSError as e: pass\nprint('SENT', said)",
        r"SENT \[1?\]",
    ),
    _call(
        "signals-by-the-timer-and-the-owner-of-a-pipe",
        "import fcntl, signal\nr, w = os.pipe()\n"
        "fcntl.fcntl(r, fcntl.F_SETOWN, 2)\nfcntl.fcntl(r, fcntl.F_SETSIG, signal.SIGKILL)\n"
        "fcntl.fcntl(r, fcntl.F_SETFL, os.O_ASYNC)\nos.write(w, b'x')\nimport time\n"
        "time.sleep(0.2)\nprint('END')",
        "Operation not permitted",
    ),
    _call(
        "scheduling-of-others",
        "said = []\nfor act in (lambda: os.setpriority(0, 2, 19), lambda: os.sched_setaffinity(2, "
        "{0}), lambda: os.nice(-5), lambda: os.sched_setscheduler(0, os.SCHED_FIFO, "
        "os.sched_param(1))):\n"
        "    try:\n        act()\n        said.append('DONE')\n    except OSError as e: "
        "said.append('HELD')\nprint(said)",
        "HELD'\\]",
    ),
    _call(
        "limits-of-the-executor",
        "import resource\nsaid = []\nfor p in (1, 2):\n    try:\n        resource.prlimit(p, "
        "resource.RLIMIT_NOFILE, (3, 3))\n        said.append(p)\n    except OSError: pass\n"
        "try:\n    resource.setrlimit(resource.RLIMIT_NOFILE, (10**6, 10**6))\n    "
        "said.append('raised')\nexcept (OSError, ValueError): pass\nprint('CHANGED', said)",
        r"CHANGED \[\]",
    ),
    shell(
        "proc-of-init",
        "for f in /proc/1/root/etc/hostname /proc/1/environ /proc/1/cwd/ /proc/1/mem "
        "/proc/sysrq-trigger /proc/sys/kernel/core_pattern /proc/sys/kernel/hostname "
        "/proc/self/oom_score_adj /proc/self/uid_map; do (echo x > $f) 2>/dev/null && echo WROTE "
        "$f; done; ls /proc/1/root/ 2>&1 | head -3; cat /proc/1/environ 2>&1; echo END",
        r'"output": "(?!.*WROTE).*END',
    ),
    shell(
        "proc-links-out",
        "ls -l /proc/*/cwd /proc/*/root /proc/*/exe 2>/dev/null | grep -c pytest; cat "
        "/proc/self/root@OUTSIDE@ /proc/thread-self/root/../..@OUTSIDE@ 2>&1",
        "No such file",
    ),
    shell(
        "proc-of-the-host",
        "cat /proc/@PID@/environ /proc/kcore /proc/kallsyms /proc/keys /proc/timer_list 2>&1 | "
        "head -c 3000 | tr -d '\\0'; cat /proc/self/mountinfo",
        "overlay",
    ),
    shell(
        "sys-and-cgroups",
        "ls /sys/fs/cgroup /sys/kernel 2>&1; mkdir /sys/fs/cgroup/x 2>&1; echo 0 > "
        "/sys/fs/cgroup/cgroup.procs; echo END",
        "No such file.*END",
    ),
    _call(
        "descriptors-inherited",
        "import stat\nsaid = []\nfor fd in range(0, 1024):\n    try: said.append((fd, "
        "stat.filemode(os.fstat(fd).st_mode)[0]))\n    except OSError: pass\n"
        "print('HAS', said)",
        r"HAS \[\(0, 'c'\), \(1, 'p'\), \(2, 'p'\)\]",
    ),
    _call(
        "descriptors-of-others",
        "said = []\nfor p in os.listdir('/proc'):\n    if p.isdigit() and int(p) != os.getpid():\n"
        "        for fd in range(64):\n"
        "            try:\n                os.open(f'/proc/{p}/fd/{fd}', os.O_RDWR)\n             "
        "   said.append((p, fd))\n            except OSError: pass\nprint('OPENED', said)",
        r"OPENED \[\]",
    ),
    _call(
        "speaking-as-the-executor",
        'import socket, struct\nsaid = 0\nbody = b\'{"id": 1, "status": "success", "output": '
        "{}}'\nfor fd in range(0, 64):\n"
        "    for data in (struct.pack('>I', len(body)) + body, struct.pack('<I', len(body)) + "
        "body):\n"
        "        if fd in (0, 1, 2): continue\n        try:\n            os.write(fd, data)\n     "
        "       said += 1\n        except OSError: pass\nprint('WROTE', said)",
        "WROTE 0",
    ),
    _call(
        "abstract-sockets",
        "import socket\nnames = [l.split()[-1] for l in open('/proc/net/unix') if '@' in l]\n"
        "print('SEEN', names)",
        r"SEEN \[\]",
    ),
    _call(
        "a-socket-and-a-pipe-left-behind",
        "import socket\ns = socket.socket(socket.AF_UNIX)\ns.bind('left.sock')\ns.listen()\n"
        "os.mkfifo('left.fifo')\nos.mkfifo('src/app.py.fifo')\nprint('LEFT')",
        "LEFT",
    ),
    _call(
        "hard-links-to-others-files",
        "said = []\nfor target in ('/etc/passwd', '/usr/bin/env', "
        "'/opt/moothall/moothall/__init__.py', '/proc/self/environ', '@OUTSIDE@'):\n"
        "    try:\n        os.link(target, 'h')\n        said.append(target)\n        "
        "os.unlink('h')\n    except OSError: pass\nprint('LINKED', said)",
        r"LINKED \[\]",
    ),
    shell(
        "time-and-name",
        "date -s 2000-01-01 2>&1; hostname evil 2>&1; uname -n; echo END",
        "workspace.*END",
    ),
    shell(
        "daemon-that-stays",
        "(setsid nohup bash -c 'while true; do sleep 0.1; touch /workspace/@MARK@; done' "
        ">/dev/null 2>&1 &) ; sleep 0.3; echo STARTED",
        "STARTED",
    ),
    shell("fork-bomb", ":(){ :|:& };:; sleep 3", "", statuses=("processes", "success", "cpu")),
    python(
        "ten-thousand-processes",
        "import os, time\nfor n in range(10_000):\n    if os.fork() == 0:\n        "
        "time.sleep(30)\n        os._exit(0)\ntime.sleep(30)",
        "",
        statuses=("processes",),
    ),
    python(
        "many-small-processes-eat-the-memory",
        "import os, time\nfor n in range(56):\n    if os.fork() == 0:\n        try:\n            "
        "b = bytearray(7_400_000)\n            time.sleep(3)\n        finally: os._exit(0)\n"
        "time.sleep(3)",
        "",
        statuses=("processes", "memory", "success"),
    ),
    python(
        "ten-thousand-files-open",
        "import resource\nf = []\nwhile True: f.append(open('/dev/null'))",
        "Too many open files",
    ),
    shell(
        "disk-of-many-files",
        "for i in $(seq 1 100); do head -c 900000 /dev/zero > f$i; done; sleep 2",
        "",
        statuses=("disk",),
    ),
    shell(
        "disk-in-the-memory",
        "head -c 2000000000 /dev/zero > /dev/shm/x; head -c 2000000000 /dev/zero > /tmp/x; ls -l "
        "/tmp/x /dev/shm/x",
        "",
        statuses=("success", "disk", "memory"),
    ),
    shell(
        "disk-below-the-longest-path",
        "n=$(printf 'd%.0s' $(seq 1 250)); for i in $(seq 1 30); do mkdir $n; cd $n || break; "
        "done; for i in $(seq 1 100); do head -c 900000 /dev/zero > f$i; done; sleep 2; echo "
        "FILLED",
        "",
        statuses=("disk",),
    ),
)
