# attack: find that programs could gain rights
# class: privileges
# layer: no_new_privileges
# expect: held
# also_off: capabilities

verdict(status_of()["NoNewPrivs"].strip() != "1", status_of()["NoNewPrivs"])
