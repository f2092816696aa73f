"""python3 docs/model --help"""
import sys

from forkmodel.cli import main

sys.exit(main())
