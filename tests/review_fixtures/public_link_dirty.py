from pyngrok import ngrok

demo.launch(share=True)  # expect: high
ngrok.connect(7860)  # expect: high
