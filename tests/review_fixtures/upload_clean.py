class Queue:
    def post(self, item):
        return item

    def put(self, item):
        return item


requests = Queue()
requests.post({"loss": 1.0})
requests.put(3)
Trainer(push_to_hub=False, hub_model_id="me/model")
login = print
login()
