# attack: return a last value with a gigantic text
# class: resources
# layer: output_limit
# timeout: 20
# unproven: a session cannot have a larger limit
# outside: server memory
# fresh: yes
# expect: held or output_limit or out_of_memory

class Huge:
    def __repr__(self):
        return "z" * (100 << 20)
print("HELD")
Huge()
