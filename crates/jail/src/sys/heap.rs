//! How the C library's allocator gives memory back.

/// Makes glibc give back what is freed: large buffers become mappings of their own, and stay so. By default the first large
/// buffer that is freed raises the size from which they do, up to 32 MiB, and twice that may then lie idle in each arena; a
/// server that had shown a flood or sixty plots kept 80 MB for nobody. Other C libraries give back by themselves.
pub fn give_back_early() {
    #[cfg(target_env = "gnu")]
    for (what, value) in [
        (libc::M_MMAP_THRESHOLD, 256 << 10),
        (libc::M_TRIM_THRESHOLD, 1 << 20),
        (libc::M_ARENA_MAX, 2),
    ] {
        // SAFETY: mallopt takes two numbers, locks the allocator's state while it changes it, and keeps no pointer.
        unsafe { libc::mallopt(what, value) };
    }
}

/// Makes glibc give back what is free between pieces that are in use, too. Takes milliseconds, in which others of the process
/// wait for memory.
pub fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim takes a number, locks each arena while it looks through it, and gives back free pages only.
    unsafe {
        libc::malloc_trim(0);
    }
}
