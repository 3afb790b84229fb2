# attack: open the host's root by its file handle
# class: root
# layer: seccomp
# expect: held
# unproven: without CAP_DAC_READ_SEARCH the kernel refuses too

handle = struct.pack("Ii", 8, 1) + struct.pack("II", 2, 0)
refused("open_by_handle_at", os.open("/usr", os.O_RDONLY), handle, 0)
