demo.launch()
demo.launch(share=False)
rocket.launch()
