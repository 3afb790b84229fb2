//! Machine code for other programs' processes. It makes the system calls of a list.
//!
//! An interpreter that makes its calls one by one spends microseconds between them, and dirties pages with each. This
//! code is position-independent and refers only to its arguments, so it can run at any address.

#[cfg(any(test, target_arch = "x86_64", target_arch = "aarch64"))]
use std::slice;

/// One call in the format that the code reads.
#[repr(C)]
#[derive(Debug, Clone, Copy, Default)]
#[cfg(test)]
pub(crate) struct Call {
    /// Its number.
    pub(crate) number: u64,
    /// Bit n: argument n is the address of a 32-bit number, to be loaded before the call.
    pub(crate) at_address: u64,
    /// Its arguments.
    pub(crate) arguments: [u64; 6],
}

// fn(first: *const Call, count: u64, result: *mut i64) -> i64
//
// Makes the calls in order. Stores each result in `result` before the next call reads its arguments, and returns the
// last one. Stops at the first failed call. Repeats a call that a signal interrupted.
#[cfg(target_arch = "x86_64")]
std::arch::global_asm!(
    ".pushsection .rodata.sandcell_batch,\"a\",@progbits",
    ".balign 16",
    ".hidden sandcell_batch",
    ".hidden sandcell_batch_end",
    ".globl sandcell_batch",
    ".globl sandcell_batch_end",
    "sandcell_batch:",
    "endbr64",
    "push rbx",
    "push rbp",
    "push r12",
    "mov rbx, rdi",
    "mov rbp, rsi",
    "mov r12, rdx",
    "xor eax, eax",
    "2:",
    "test rbp, rbp",
    "jz 9f",
    "3:",
    "mov rcx, [rbx + 8]",
    "mov rdi, [rbx + 16]",
    "test cl, 1",
    "jz 4f",
    "movsxd rdi, dword ptr [rdi]",
    "4:",
    "mov rsi, [rbx + 24]",
    "test cl, 2",
    "jz 4f",
    "movsxd rsi, dword ptr [rsi]",
    "4:",
    "mov rdx, [rbx + 32]",
    "test cl, 4",
    "jz 4f",
    "movsxd rdx, dword ptr [rdx]",
    "4:",
    "mov r10, [rbx + 40]",
    "test cl, 8",
    "jz 4f",
    "movsxd r10, dword ptr [r10]",
    "4:",
    "mov r8, [rbx + 48]",
    "test cl, 16",
    "jz 4f",
    "movsxd r8, dword ptr [r8]",
    "4:",
    "mov r9, [rbx + 56]",
    "test cl, 32",
    "jz 4f",
    "movsxd r9, dword ptr [r9]",
    "4:",
    "mov rax, [rbx]",
    "syscall",
    "cmp rax, -4",
    "je 3b",
    "mov [r12], rax",
    "cmp rax, -4095",
    "jae 9f",
    "add rbx, 64",
    "dec rbp",
    "jmp 2b",
    "9:",
    "pop r12",
    "pop rbp",
    "pop rbx",
    "ret",
    "sandcell_batch_end:",
    ".popsection",
);

#[cfg(target_arch = "aarch64")]
std::arch::global_asm!(
    ".pushsection .rodata.sandcell_batch,\"a\",@progbits",
    ".balign 16",
    ".hidden sandcell_batch",
    ".hidden sandcell_batch_end",
    ".globl sandcell_batch",
    ".globl sandcell_batch_end",
    "sandcell_batch:",
    "hint #34",
    "mov x9, x0",
    "mov x10, x1",
    "mov x11, x2",
    "mov x0, #0",
    "2:",
    "cbz x10, 9f",
    "3:",
    "ldp x8, x12, [x9]",
    "ldp x0, x1, [x9, #16]",
    "ldp x2, x3, [x9, #32]",
    "ldp x4, x5, [x9, #48]",
    "tbz x12, #0, 4f",
    "ldrsw x0, [x0]",
    "4:",
    "tbz x12, #1, 4f",
    "ldrsw x1, [x1]",
    "4:",
    "tbz x12, #2, 4f",
    "ldrsw x2, [x2]",
    "4:",
    "tbz x12, #3, 4f",
    "ldrsw x3, [x3]",
    "4:",
    "tbz x12, #4, 4f",
    "ldrsw x4, [x4]",
    "4:",
    "tbz x12, #5, 4f",
    "ldrsw x5, [x5]",
    "4:",
    "svc #0",
    "cmn x0, #4",
    "b.eq 3b",
    "str x0, [x11]",
    "cmn x0, #4095",
    "b.hs 9f",
    "add x9, x9, #64",
    "sub x10, x10, #1",
    "b 2b",
    "9:",
    "ret",
    "sandcell_batch_end:",
    ".popsection",
);

/// Returns the code that makes calls. Empty on processors without this code.
pub(crate) fn code() -> &'static [u8] {
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    {
        unsafe extern "C" {
            #[link_name = "sandcell_batch"]
            static CODE_BEGIN: u8;
            #[link_name = "sandcell_batch_end"]
            static CODE_END: u8;
        }
        let (begin, end) = (&raw const CODE_BEGIN, &raw const CODE_END);
        // SAFETY: both symbols are in one read-only section of this program, the end after the beginning, and only the
        // code lies between them.
        unsafe { slice::from_raw_parts(begin, end.addr() - begin.addr()) }
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    &[]
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::os::fd::AsRawFd as _;
    use std::ptr;

    use super::*;

    const EBADF: i64 = -9;

    /// Puts the code into new memory, as its receiver does. The memory is never freed.
    fn executable(code: &[u8]) -> *mut libc::c_void {
        // SAFETY: the memory is new and of the code's size; it is written to before it is made executable.
        unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
            let page = libc::mmap(
                ptr::null_mut(),
                code.len(),
                libc::PROT_READ | libc::PROT_WRITE,
                flags,
                -1,
                0,
            );
            assert_ne!(page, libc::MAP_FAILED);
            ptr::copy_nonoverlapping(code.as_ptr(), page.cast(), code.len());
            assert_eq!(libc::mprotect(page, code.len(), libc::PROT_READ | libc::PROT_EXEC), 0);
            page
        }
    }

    /// Returns the returned value, and the stored result.
    fn carry_out(calls: &[Call]) -> (i64, i64) {
        let mut result = -1_i64;
        let _ = (&raw mut result).expose_provenance();
        // SAFETY: a whole function of that signature is at this address. The test owns the arguments of the calls.
        unsafe {
            let function: extern "C" fn(*const Call, u64, *mut i64) -> i64 = std::mem::transmute(executable(code()));
            let returned = function(calls.as_ptr(), u64::try_from(calls.len()).unwrap(), &raw mut result);
            (returned, result)
        }
    }

    fn call(number: libc::c_long, arguments: [u64; 6]) -> Call {
        Call {
            number: number.cast_unsigned(),
            at_address: 0,
            arguments,
        }
    }

    fn address<T>(of: &T) -> u64 {
        u64::try_from(ptr::from_ref(of).expose_provenance()).unwrap()
    }

    #[test]
    fn each_argument_arrives_in_order_and_may_be_read_from_an_address() {
        // Only mmap takes six arguments.
        let file = rustix::fs::memfd_create("six", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::fs::ftruncate(&file, 8192).unwrap();
        rustix::io::pwrite(&file, b"there", 4096).unwrap();
        let numbers = [0, 4096, libc::PROT_READ, libc::MAP_PRIVATE, file.as_raw_fd(), 4096];
        for at_address in std::iter::once(0).chain((0..6).map(|place| 1 << place)).chain([63]) {
            let mut mapped = call(libc::SYS_mmap, numbers.map(|number| u64::try_from(number).unwrap()));
            mapped.at_address = at_address;
            for (place, number) in numbers.iter().enumerate() {
                if at_address & 1 << place != 0 {
                    mapped.arguments[place] = address(number);
                }
            }
            let (found, _) = carry_out(&[mapped]);
            assert!(found > 0, "{at_address:06b}: {found}");
            let found = ptr::with_exposed_provenance_mut::<u8>(usize::try_from(found).unwrap());
            // SAFETY: the kernel has just mapped a page of the file there, which nobody else uses.
            unsafe {
                assert_eq!(slice::from_raw_parts(found, 5), b"there");
                libc::munmap(found.cast(), 4096);
            }
        }
    }

    #[test]
    fn an_argument_at_an_address_is_read_when_its_call_is_made() {
        let mut ends = [-1_i32; 2];
        let _ = (&raw mut ends).expose_provenance();
        let said = *b"said";
        let mut heard = [0_u8; 4];
        let _ = (&raw mut heard).expose_provenance();
        let at = |end: &i32, number, others: [u64; 2]| Call {
            at_address: 1,
            ..call(number, [address(end), others[0], others[1], 0, 0, 0])
        };
        let calls = [
            call(libc::SYS_pipe2, [address(&ends), 0, 0, 0, 0, 0]),
            at(&ends[1], libc::SYS_write, [address(&said), 4]),
            at(&ends[0], libc::SYS_read, [address(&heard), 4]),
            at(&ends[1], libc::SYS_close, [0, 0]),
            at(&ends[0], libc::SYS_close, [0, 0]),
        ];
        assert_eq!(carry_out(&calls), (0, 0));
        assert_eq!(std::hint::black_box(heard), said);
    }

    #[test]
    fn the_first_failure_ends_the_batch() {
        let mut heard = 0_u32;
        let _ = (&raw mut heard).expose_provenance();
        let calls = [
            call(libc::SYS_getpid, [0; 6]),
            call(libc::SYS_close, [u64::MAX, 0, 0, 0, 0, 0]),
            call(libc::SYS_getrandom, [address(&heard), 4, 0, 0, 0, 0]),
        ];
        assert_eq!(carry_out(&calls), (EBADF, EBADF));
        assert_eq!(std::hint::black_box(heard), 0);
        assert_eq!(carry_out(&calls[..1]).0, i64::from(std::process::id()));
        assert_eq!(carry_out(&[]), (0, -1));
    }

    #[test]
    #[expect(clippy::as_conversions, reason = "sigaction holds a handler as a number")]
    fn an_interrupted_call_is_repeated() {
        extern "C" fn ignore(_signal: libc::c_int) {}
        let handler: extern "C" fn(libc::c_int) = ignore;
        // SAFETY: a handler that does nothing, for a signal that no other test uses; without SA_RESTART calls end with
        // EINTR.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handler as *const () as usize;
            assert_eq!(libc::sigaction(libc::SIGUSR2, &raw const action, ptr::null_mut()), 0);
        }
        let (reader, writer) = std::io::pipe().unwrap();
        let (tell, told) = std::sync::mpsc::channel();
        let waiting = std::thread::spawn(move || {
            // SAFETY: it takes nothing.
            tell.send(unsafe { libc::pthread_self() }).unwrap();
            let mut heard = [0_u8; 4];
            let _ = (&raw mut heard).expose_provenance();
            let descriptor = u64::try_from(reader.as_raw_fd()).unwrap();
            carry_out(&[call(libc::SYS_read, [descriptor, address(&heard), 4, 0, 0, 0])])
        });
        let thread = told.recv().unwrap();
        for _ in 0..20 {
            std::thread::sleep(std::time::Duration::from_millis(2));
            // SAFETY: the thread was not joined yet.
            unsafe { libc::pthread_kill(thread, libc::SIGUSR2) };
        }
        assert!(!waiting.is_finished());
        (&writer).write_all(b"said").unwrap();
        assert_eq!(waiting.join().unwrap(), (4, 4));
    }
}
