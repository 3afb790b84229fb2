# attack: make anonymous files where nothing charges them
# class: resources
# layer: memory_limit
# expect: held
# unproven: the call is taken away by the watched degree, which nothing raises
# needs: user

fails(lambda: os.memfd_create("x"))
