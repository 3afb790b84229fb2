# attack: learn the host's name
# class: environment
# layer: uts_namespace
# expect: held

verdict(LURE["hostname"] in (socket.gethostname(), os.uname().nodename), socket.gethostname())
