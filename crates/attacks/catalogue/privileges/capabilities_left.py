# attack: find a capability left in any set
# class: privileges
# layer: capabilities
# expect: held
# quick: yes

status = status_of()
finds(k + status[k] for k in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb") if int(status[k], 16))
