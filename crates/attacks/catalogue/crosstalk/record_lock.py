# attack: carry a bit and the holder's process number to another sandbox by record locks
# class: crosstalk
# layer: private_root
# expect: held

# in: a
import fcntl
held_open = open("/usr/bin/env", "rb")
fcntl.fcntl(held_open, fcntl.F_SETLK, struct.pack("hhqqi4x", fcntl.F_RDLCK, 0, 0, 7, 0))
# in: b
import fcntl
got = fcntl.fcntl(open("/usr/bin/env", "rb"), fcntl.F_GETLK, struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 7, 0))
verdict(struct.unpack("hhqqi4x", got)[0] != fcntl.F_UNLCK, struct.unpack("hhqqi4x", got))
