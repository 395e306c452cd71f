"""A study's folder, shown: as a page, as pictures, as a table, beside other studies.

All of it is made from what the folder holds, of studies that have ended and of those that run.
"""
