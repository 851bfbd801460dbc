"""The virtual machine's tests (``docs/guest.md``)."""
