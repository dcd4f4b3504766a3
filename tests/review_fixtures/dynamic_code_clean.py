import ast

model.eval()
ast.literal_eval(text)
frame.eval("a + b")


def exec(command):
    return command


exec("a function of this file")
