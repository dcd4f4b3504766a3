import builtins
import runpy

import requests

eval(text)  # expect: medium
builtins.exec("print(1)")  # expect: low
exec(requests.get(address).text)  # expect: dynamic-code high, download medium
runpy.run_path(path)  # expect: medium
run = eval
run(text)  # expect: medium
