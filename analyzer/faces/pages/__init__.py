"""Pages for operators: what the commands say, drawn, and what they do, as forms.

A page is a function that returns its content (`page_content`) from the chapters' objects; one template
draws all contents. What a form does is an endpoint of the API.
"""
