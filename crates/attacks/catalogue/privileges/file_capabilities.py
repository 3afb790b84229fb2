# attack: give a program capabilities by an attribute
# class: privileges
# layer: capabilities
# expect: held
# unproven: setting the attribute takes rights over the file system's owner

open("/tmp/tool", "w").close()
fails(lambda: os.setxattr("/tmp/tool", "security.capability", struct.pack("<IIIII", 0x02000001, 0xFFFFFFFF, 0, 0, 0)))
