"""`browser.*`: pages in a Chromium of the call's own."""
