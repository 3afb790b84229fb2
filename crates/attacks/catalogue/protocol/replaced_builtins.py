# attack: replace the built-ins that the driver may use
# class: protocol
# layer: protocol
# expect: any
# fresh: yes

import builtins
for name in list(vars(builtins)):
    if name not in ("print", "__import__", "__build_class__", "__name__"):
        try:
            setattr(builtins, name, None)
        except Exception:
            pass
print("HELD")
