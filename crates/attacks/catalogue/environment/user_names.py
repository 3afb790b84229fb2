# attack: learn the operator's name
# class: environment
# layer: private_root
# expect: held
# containers: the image has no account for the sandbox's user

import getpass, pwd
names = {getpass.getuser(), pwd.getpwuid(os.getuid()).pw_name, os.environ.get("USER"), os.path.basename(os.path.expanduser("~"))}
finds((names - {"user"}) | ({p.pw_name for p in pwd.getpwall()} - {"root", "user", "nobody"}))
