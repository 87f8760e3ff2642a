"""Will hold profiles: Parquet tables, queries and the web page.

Never imports ``torch_neuronx``. Nothing is here yet.
"""
