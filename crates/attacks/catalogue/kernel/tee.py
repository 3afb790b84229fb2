# attack: duplicate the content of a pipe without a copy
# class: kernel
# layer: seccomp
# expect: held

one, other = os.pipe(), os.pipe()
os.write(one[1], b"x")
result, error = call("tee", one[0], other[1], 1, 0)
verdict(result >= 0, "tee gave", result, errno.errorcode.get(error, error))
