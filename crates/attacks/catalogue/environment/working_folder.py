# attack: find the server's working folder
# class: environment
# layer: private_root
# expect: held
# unproven: the working folder is set when a program starts

finds([os.getcwd()] if not os.getcwd().startswith(("/home/user", "/tmp")) else [])
