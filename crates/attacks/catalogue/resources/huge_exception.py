# attack: raise an exception with a gigantic text and a chain without end
# class: resources
# layer: output_limit
# timeout: 20
# unproven: a session cannot have a larger limit
# outside: server memory
# fresh: yes
# expect: any

def deep(n):
    try:
        if n:
            deep(n - 1)
        raise ValueError("v" * (1 << 20))
    except ValueError as error:
        raise RuntimeError("r" * (1 << 20)) from error
deep(20)
