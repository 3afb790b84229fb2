# attack: have the session's own machinery import the code's modules
# class: workspace
# layer: protocol
# expect: held
# fresh: yes

# in: a
for name in ("json", "struct", "traceback", "linecache", "io", "os", "re", "ast", "sitecustomize", "usercustomize", "posix", "marshal"):
    open(f"/home/user/{name}.py", "w").write("raise SystemExit('shadowed')\n")
# in: a
import traceback
try:
    1 / 0
except ZeroDivisionError:
    text = traceback.format_exc()
verdict("ZeroDivision" not in text, text)
