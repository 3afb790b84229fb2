# attack: close every descriptor and continue to compute
# class: protocol
# layer: protocol
# timeout: 2
# expect: any
# fresh: yes

os.closerange(0, 4096)
time.sleep(30)
