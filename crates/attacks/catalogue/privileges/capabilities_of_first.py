# attack: find a capability left in the first process
# class: privileges
# layer: capabilities
# expect: held

status = status_of(1)
finds(k + status[k] for k in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb") if int(status[k], 16))
