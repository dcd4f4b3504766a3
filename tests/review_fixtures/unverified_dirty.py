import os
import ssl

import requests as r

ssl._create_default_https_context = ssl._create_unverified_context  # expect: medium
r.get(address, verify=False)  # expect: unverified medium, download medium
os.system("wget --no-check-certificate https://example.org/a.zip")  # expect: unverified medium, download medium
