"""Masking: no secret in what a worker lets out, nor in what an agent passes through here.

A text goes through `masker`, which asks in this order, whatever knows more of the structure first:

    known         values that are secret wherever they stand: those of the configuration
    json_text     JSON, also in strings, in lines, cut off; `json_reader` has the grammar, `json_frames` what is open,
                  `json_values` the rules, `answers` what well-known programs answer in it
    kubernetes    Secrets in YAML, which have no names to go by
    private_keys  what lies between BEGIN and END
    tables        columns and cells; `html_tables` those of HTML
    languages     names in other alphabets
    printed       what the line above announces
    sql           columns named in one place, with their values in another
    commands      arguments of programs
    forms         what shows by its form that it is a secret; `tokens` has the providers', `lines` what stands at
                  a fixed place of a line
    assignments   what a name says is one (`named`): `value_spans` and `value_lists` know where it ends, `markup` and
                  `headers` those with a syntax of their own
    encoded       base64 of a text
    custom        patterns that a configuration adds; `groups` has their names

`names` and `values` go by the words of `vocabulary`: which names promise a secret, and which values are none all
the same. Nothing here finds a secret that has neither a name nor a form. Importing this package imports nothing:
whoever needs no more than the words does without the search.
"""
