# The machine code of images.py, for x86-64. The bytes there are `as` of this file; a test compares them.
.intel_syntax noprefix
.text

# long save(registers, ready, table, room, size)
# Saves the registers that a function must keep, writes a line feed to the descriptor `ready`, reads rows of calls from
# the descriptor `table` into `room` until its end, makes the calls, and ends the process with status 0. From the line
# feed on, it changes no memory but `room`.
save:
        mov     [rdi], rbx
        mov     [rdi+8], rbp
        mov     [rdi+16], r12
        mov     [rdi+24], r13
        mov     [rdi+32], r14
        mov     [rdi+40], r15
        lea     rax, [rsp+8]
        mov     [rdi+48], rax
        mov     rax, [rsp]
        mov     [rdi+56], rax
        stmxcsr [rdi+64]
        fnstcw  [rdi+68]
        mov     r13, rdx
        mov     r14, rcx
        mov     rbp, rcx
        lea     rbx, [rcx+r8]
        mov     rdi, rsi
        lea     rsi, [rip+newline]
        mov     edx, 1
        mov     eax, 1                          # write
        syscall
1:      mov     rdi, r13
        mov     rsi, rbp
        mov     rdx, rbx
        sub     rdx, rbp
        xor     eax, eax                        # read
        syscall
        add     rbp, rax
        test    rax, rax
        jg      1b
        js      fail
        mov     r12, r14
        mov     r13, rbp
        xor     r15d, r15d
        jmp     rows
newline:
        .byte   10

.balign 16
# restore(registers, rows, end)
# Makes calls: rows of eight words, the number, six arguments, and the allowed result (0: any but an error, 1: any).
# Another result ends the process. Behind the registers are an address and a word, which it stores there. Then it loads the
# registers, and `save` returns 0x5ce there. It uses no stack, because
# the calls replace all memory but that of this code.
restore:
        mov     r15, rdi
        mov     r12, rsi
        mov     r13, rdx
rows:   cmp     r12, r13
        jae     4f
        mov     rax, [r12]
        mov     rdi, [r12+8]
        mov     rsi, [r12+16]
        mov     rdx, [r12+24]
        mov     r10, [r12+32]
        mov     r8, [r12+40]
        mov     r9, [r12+48]
        syscall
        mov     rcx, [r12+56]
        add     r12, 64
        cmp     rcx, 1
        je      rows
        test    rcx, rcx
        jz      2f
        cmp     rcx, rax
        je      rows
        jmp     fail
2:      cmp     rax, -4096
        jbe     rows
fail:   mov     edi, 71
3:      mov     eax, 231                        # exit_group
        syscall
4:      xor     edi, edi
        test    r15, r15
        jz      3b
        mov     rax, [r15+72]
        mov     rcx, [r15+80]
        mov     [rax], rcx
        mov     rbx, [r15]
        mov     rbp, [r15+8]
        mov     r12, [r15+16]
        mov     r13, [r15+24]
        mov     r14, [r15+32]
        mov     rsp, [r15+48]
        ldmxcsr [r15+64]
        fldcw   [r15+68]
        mov     rcx, [r15+56]
        mov     r15, [r15+40]
        mov     eax, 0x5ce
        jmp     rcx
