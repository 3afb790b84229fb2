# attack: give back a last value with a gigantic text
# class: resources
# layer: output_limit
# timeout: 20
# unproven: there is no larger limit that a session could have
# outside: server memory
# fresh: yes
# expect: held or output_limit or out_of_memory

class Huge:
    def __repr__(self):
        return "z" * (100 << 20)
print("HELD")
Huge()
