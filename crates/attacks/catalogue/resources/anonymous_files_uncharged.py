# attack: make anonymous files where no control group charges them
# class: resources
# layer: memory_limit
# expect: held
# unproven: without a control group the filter refuses the call, at any limit
# needs: user

fails(lambda: os.memfd_create("x"))
