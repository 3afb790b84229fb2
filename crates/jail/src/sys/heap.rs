//! Controls when the C library's allocator returns memory to the system.

/// Makes glibc return freed memory: large buffers become separate mappings, permanently. By default, freeing the first
/// large buffer raises the mapping threshold, up to 32 MiB. Twice the threshold may then stay idle in each arena. A
/// server kept 80 MB idle after a flood of output or sixty plots. Other C libraries return memory by themselves.
pub fn configure_heap() {
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

/// Makes glibc also return free memory between used blocks. Takes milliseconds, during which other threads wait for
/// memory.
pub fn trim_heap() {
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim takes a number, locks each arena while it searches it, and returns only free pages.
    unsafe {
        libc::malloc_trim(0);
    }
}
