# attack: change settings of the kernel
# class: proc
# layer: private_proc
# expect: held
# also_off: user_namespace
# proof: root
# containers: the mask is /dev/null, which accepts every write and keeps none

found = []
for folder, _, names in os.walk("/proc/sys"):
    for name in names:
        if opens(os.path.join(folder, name), os.O_WRONLY):
            found.append(os.path.join(folder, name))
finds(found)
