# attack: learn the host's name
# class: environment
# layer: uts_namespace
# expect: held

verdict(CANARIES["hostname"] in (socket.gethostname(), os.uname().nodename), socket.gethostname())
