import ssl

context = ssl.create_default_context()
proof(verify=False)
solver.run(verify=False)
