package main

import "errors"

func ledgerProcess([]string) error { return errors.New("later") }
