# attack: find that the first process is not filtered or locked
# class: privileges
# layer: seccomp
# expect: held

s = status_of(1)
verdict(s["Seccomp"].strip() != "2" or s["NoNewPrivs"].strip() != "1", s["Seccomp"], s["NoNewPrivs"])
