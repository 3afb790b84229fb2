# attack: find that system calls are not filtered
# class: privileges
# layer: seccomp
# expect: held

verdict(status_of()["Seccomp"].strip() != "2" or int(status_of().get("Seccomp_filters", "1")) < 1, status_of()["Seccomp"])
