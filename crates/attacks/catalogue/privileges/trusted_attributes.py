# attack: set attributes that overlay file systems trust
# class: privileges
# layer: capabilities
# expect: held
# unproven: setting the attributes needs rights over the host

open("/tmp/trusted", "w").close()
found = []
for name in ("trusted.overlay.redirect", "trusted.overlay.opaque", "security.ima", "security.evm", "system.posix_acl_x"):
    try:
        os.setxattr("/tmp/trusted", name, b"/usr")
        found.append(name)
    except OSError:
        pass
finds(found)
