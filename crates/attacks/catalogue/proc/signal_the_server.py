# attack: find the server by its process number
# class: proc
# layer: pid_namespace
# expect: held
# also_off: private_proc
# proof: root

try:
    os.kill(CANARIES["pid"], 0)
    verdict(True, "it could be signalled")
except OSError as error:
    verdict(error.errno != errno.ESRCH, error)
