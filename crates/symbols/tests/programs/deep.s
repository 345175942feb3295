# Debug info whose inlined calls are nested deeper than any compiler would.
        .text
        .globl main
        .type main, @function
main:   xor %eax, %eax
        nop
        ret
.Lend:
        .size main, .-main
        .section .note.GNU-stack, "", @progbits
        .section .debug_abbrev, "", @progbits
.Labbrev:
        .uleb128 1, 0x11            # compile unit, with children
        .byte 1
        .uleb128 0x11, 0x01         # low pc, address
        .uleb128 0x12, 0x07         # high pc, eight bytes
        .uleb128 0, 0
        .uleb128 2, 0x2e            # subprogram, with children
        .byte 1
        .uleb128 0x03, 0x08         # name, string
        .uleb128 0x11, 0x01
        .uleb128 0x12, 0x07
        .uleb128 0, 0
        .uleb128 3, 0x1d            # inlined subroutine, with children
        .byte 1
        .uleb128 0x11, 0x01
        .uleb128 0x12, 0x07
        .uleb128 0, 0
        .uleb128 0
        .section .debug_info, "", @progbits
        .long .Linfo_end - .Linfo
.Linfo: .value 4
        .long .Labbrev
        .byte 8
        .uleb128 1
        .quad main, .Lend - main
        .uleb128 2
        .string "main"
        .quad main, .Lend - main
        .rept 200000
        .uleb128 3
        .quad main, .Lend - main
        .endr
        .fill 200002, 1, 0
.Linfo_end:
