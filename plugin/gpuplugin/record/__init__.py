"""The record: who has which GPU, over restarts, boots and instances, in allocations.json"""
