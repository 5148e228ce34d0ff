"""A local page in the browser: read rollouts word by word, mark words, train on the marks, compare the answers.

sources     what a person names on the command line → files of JSON records
index       an SQLite index of one run: texts, places of records; grows while the run is written
columns     its numbers in memory: filters, order, curves
marks       the side store: every mark of every rater, append-only
suggestions the critic of a run, asked about any response
teaching    what a new version does to the marked words
retraining  marks → a reward model → the policy: phases 2 and 3 once more
worker      the process that holds the models, and gives the lessons; the server never loads a model
app         the server: loopback, token, Host and Origin, no path outside the runs
static/     the page: ES modules without a build step; it shares tokens and colours with the reports
"""
