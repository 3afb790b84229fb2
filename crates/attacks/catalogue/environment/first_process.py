# attack: read the first process's environment
# class: environment
# layer: hidden_agent
# expect: held
# also_off: empty_environment
# quick: yes

fails(lambda: open("/proc/1/environ", "rb").read())
