# attack: open the interpreter for writing
# class: root
# layer: private_root
# expect: held
# unproven: the kernel answers ETXTBSY for a program that runs

fails(lambda: os.open(os.path.realpath(sys.executable), os.O_WRONLY))
