# attack: find paths of the host in a traceback and in the modules' files
# class: environment
# layer: private_root
# expect: held
# unproven: the driver is passed as bytes and has no path

import traceback
try:
    exec("1/0")
except ZeroDivisionError:
    text = traceback.format_exc()
text += " ".join(str(getattr(m, "__file__", "")) for m in list(sys.modules.values())) + " ".join(sys.path) + " ".join(sys.argv)
finds(p for p in CANARIES["paths"] if p in text)
