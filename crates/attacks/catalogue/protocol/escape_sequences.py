# attack: print escape sequences that would act on the reader's terminal
# class: protocol
# layer: protocol
# expect: any
# outside: no escape

os.write(1, b"\x1b]0;title\x07\x1b[2J\x1b[1;1H\x1b]52;c;ZXZpbA==\x07\x9b31m\x00\x08\x7f\xe2\x80\xae")
print("\nHELD")
