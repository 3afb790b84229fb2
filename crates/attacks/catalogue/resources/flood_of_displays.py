# attack: show rich values without end
# class: resources
# layer: output_limit
# timeout: 20
# unproven: a session cannot have a larger limit
# outside: server memory
# fresh: yes
# expect: held or output_limit

class Big:
    def _repr_html_(self):
        return "x" * (8 << 20)
    def __repr__(self):
        return "y" * (8 << 20)
try:
    for _ in range(100):
        display(Big())
except NameError:
    pass
print("HELD")
